"""Open Data Fabric: metadata blocks, their hashes and texts, chains, and Arrow schemas in them.

Bytes in, values out; no SQL, no engine, and no store: who reads hands over a function. Sources:
the Open Data Fabric specification 0.39 with its RFCs 10, 12, 13, 15 and 16, and blocks that real
tools wrote.
"""
