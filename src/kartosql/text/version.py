"""The version of kartosql, where every room can name it."""

VERSION = "0.1.0"
