"""Sample cubes to try kartosql on."""

from kartosql.demo.flights import DEMO_QUERIES, build_flights

__all__ = ["DEMO_QUERIES", "build_flights"]
