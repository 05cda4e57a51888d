"""Assertions in the shared helper say what differs, as those in test files do."""

import pytest

pytest.register_assert_rewrite("tests.plan.rule_cases")
