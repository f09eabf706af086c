"""What may leave out files of a table: each kind of index answers the same question about conditions of a statement."""
