"""What the dialect lacks of what SQLAlchemy's suite asks for, with reasons."""

from __future__ import annotations

from sqlalchemy.testing.exclusions import BooleanPredicate, open, skip_if
from sqlalchemy.testing.requirements import SuiteRequirements

LACKS = {
    "no constraints are kept": """
        foreign_keys primary_key_constraint_reflection foreign_key_constraint_reflection unique_constraint_reflection
        foreign_key_ddl duplicate_key_raises_integrity_error self_referential_foreign_keys named_constraints
        implicitly_named_constraints on_update_cascade recursive_fk_cascade""",
    "a schema is a cube, whose datasets are not made one by one": "schemas",
    "a DATE takes no TIMESTAMP of another time than midnight": "date_coerces_from_datetime",
    "an index has no name, and belongs to the dataset": "index_reflection",
    "there are no temporary tables": "temporary_tables temp_table_reflection",
    "no numbers are given to rows": "autoincrement_insert implements_get_lastrowid autoincrement_without_sequence",
}


class Requirements(SuiteRequirements):
    """Those of all databases, less what is lacking."""

    supports_distinct_on = views = property(lambda _: open())


for _reason, _names in LACKS.items():
    for _name in _names.split():
        assert hasattr(SuiteRequirements, _name), _name
        setattr(Requirements, _name, property(lambda _, reason=_reason: skip_if(BooleanPredicate(True, reason))))
