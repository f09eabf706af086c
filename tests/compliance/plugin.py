"""The plugin of SQLAlchemy's suite, which knows the dialect of this checkout."""

from sqlalchemy.dialects import registry

for name in ("kartosql", "kartosql.kartosql"):
    registry.register(name, "kartosql.sqlalchemy_dialect", "KartosqlDialect")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403
