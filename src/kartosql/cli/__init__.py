"""The command ``kartosql``: one module per task, heavy imports only where they are needed."""
