"""ATTACH: folders of files, ODF datasets and other stores as tables of a connection."""

from kartosql.attach.registry import Access, Attachments

__all__ = ["Access", "Attachments"]
