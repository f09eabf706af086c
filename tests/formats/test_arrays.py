"""Python values as Arrow arrays."""

from __future__ import annotations

import decimal
from decimal import Decimal

import pytest

from kartosql.formats.arrays import decimal_of


@pytest.mark.parametrize(
    ("unscaled", "scale", "text"), [(10**38 - 1, 10, "9" * 28 + "." + "9" * 10), (-15, 1, "-1.5"), (0, 2, "0.00")]
)
def test_decimals_are_exact_whatever_the_context_says(unscaled, scale, text):
    with decimal.localcontext(prec=3):
        assert decimal_of(unscaled, scale) == Decimal(text)
        assert str(decimal_of(unscaled, scale)) == text
