"""Expressions for names: what is refused, and what is left to a thread."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.name_pattern import compile_name_pattern, may_take_long


@pytest.mark.parametrize("pattern", ["(", ".{900}", "a{1001}"])
def test_a_pattern_that_is_no_expression_or_a_huge_one_is_refused(pattern: str) -> None:
    with pytest.raises(RequestError) as refusal:
        compile_name_pattern(pattern, "Pattern")
    assert refusal.value.code is ErrorCode.invalid_regular_expression
    assert str(refusal.value).count(f"Pattern `{pattern}` is not a valid regular expression: ") == 1


def test_a_long_program_and_a_long_name_together_take_long() -> None:
    short, long = compile_name_pattern("pay-.*", "Pattern"), compile_name_pattern("a{900}", "Pattern")
    assert not may_take_long(short, "a" * 32_000)
    assert not may_take_long(long, "a" * 249)
    assert may_take_long(long, "a" * 32_000)
