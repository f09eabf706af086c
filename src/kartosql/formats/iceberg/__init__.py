"""Iceberg tables on disk: metadata, snapshots, manifests, and columns by their ids."""
