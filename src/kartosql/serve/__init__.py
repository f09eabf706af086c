"""A server: SQL of many over one store, by Arrow Flight SQL, HTTP and MCP, each statement in an untrusted worker."""
