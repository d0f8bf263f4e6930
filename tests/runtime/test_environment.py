"""Tests of the environment variables of a generated package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import pav2gen
from pav2gen.runtime.environment import OFF, choice, is_on


@pytest.mark.parametrize("value", ["1", "true", "YES", "on", " 1 ", "2", "ture"])
def test_any_other_value_switches_on(monkeypatch, value):
    monkeypatch.setenv("PAV2_DISABLE", value)
    assert is_on("PAV2_DISABLE")


@pytest.mark.parametrize("value", [None, "", "0", "false", "No", "OFF", " 0 "])
def test_these_values_switch_off(monkeypatch, value):
    monkeypatch.delenv("PAV2_DISABLE", raising=False)
    if value is not None:
        monkeypatch.setenv("PAV2_DISABLE", value)
    assert not is_on("PAV2_DISABLE")


def test_a_choice_is_one_of_the_allowed(monkeypatch):
    monkeypatch.delenv("PAV2_WRITER", raising=False)
    assert choice("PAV2_WRITER", ("auto", "always")) == ""
    monkeypatch.setenv("PAV2_WRITER", "always")
    assert choice("PAV2_WRITER", ("auto", "always")) == "always"
    monkeypatch.setenv("PAV2_WRITER", "allways")
    with pytest.raises(ValueError, match=r"^PAV2_WRITER is 'allways'; it must be auto or always$"):
        choice("PAV2_WRITER", ("auto", "always"))


def test_the_entry_point_of_a_wheel_has_the_same_words():
    path = Path(pav2gen.__file__).parent / "install" / "payload" / "entry_point.py"
    spec = importlib.util.spec_from_file_location("entry_point", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.OFF == OFF
