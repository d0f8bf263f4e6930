"""The JSON Schema of a spec accepts what ``build`` accepts, and finds mistakes of type, name and range."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from pav2gen.cli import main
from pav2gen.reading.json_schema import FIELDS, SECTIONS, spec_schema
from pav2gen.reading.spec_file import KEYS, parse
from tests.reading.test_bad_specs import CASES, GOOD

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
SCHEMA = spec_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

#: Mistakes that only ``build`` finds: what YAML itself allows, words that are taken, rules over several values.
ONLY_BUILD = {
    "duplicate key", "duplicate axis", "duplicate key in a flow", "float for a number", "mapping for exclusions", "yes",
    "off", "True", "octal", "hexadecimal", "underscores", "merge key", "value twice by an alias", "reserved name",
    "keyword", "device", "escape in a text", "end of a comment", "end of a docstring", "blank text",
    "excluded value that is not there", "exclusion of nothing", "exclusion of everything", "product over the limit",
    "anchor", "long anchor", "UTF-16", "byte-order mark", "text that runs backwards", "partition of half a block",
    "half a group", "a softcap of nothing", "a window of nothing", "a modification that is nowhere",
    "a mistake in a mask", "a mistake in a plain mask", "a mistake behind an escape", "a tensor without a use",
    "a tensor called s", "a softcap that is no number", "a softcap without end",
    "a softcap with a signed exponent",
    "a modification that is not built", "heads without a ratio", "ranks that split no heads",
    "ranks that are not served", "fixed partition", "workspace",
}  # fmt: skip


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_key_of_a_spec_is_described():
    paths = {f"{section}.{key}".lstrip(".") for section, keys in KEYS.items() for key in (*keys[0], *keys[1])}
    assert set(FIELDS) <= paths and set(SECTIONS) == set(KEYS) - {""}

    def described(schema, path=""):
        for key, child in schema.get("properties", {}).items():
            if not (path == "cuda" or path.startswith("exclude")):
                assert child.get("description"), f"{path}.{key}"
            described(child, key)

    described(SCHEMA)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_committed_specs_keep_it(path):
    VALIDATOR.validate(yaml.safe_load(path.read_text("utf-8")))


def test_the_good_spec_keeps_it():
    parse(GOOD.encode(), "good.yaml")
    VALIDATOR.validate(yaml.safe_load(GOOD))


def readable(data):
    try:
        yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    return True


BAD = sorted(name for name, case in CASES.items() if name not in ONLY_BUILD and readable(case.data))


def test_there_are_enough_bad_specs():
    assert len(BAD) >= 40


@pytest.mark.parametrize("name", BAD)
def test_bad_specs_break_it(name):
    assert list(VALIDATOR.iter_errors(yaml.safe_load(CASES[name].data)))


def test_the_command_prints_and_writes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    assert json.loads(run(main, ["schema"]).output) == SCHEMA
    assert run(main, ["schema", "-o", "spec.schema.json"]).exit_code == 0
    assert json.loads(Path("spec.schema.json").read_text("utf-8")) == SCHEMA
    assert run(main, ["schema", "-o", "spec.schema.json"]).exit_code == 0, "its own file is replaced"
    Path("notes.json").write_text("{}")
    refused = run(main, ["schema", "-o", "notes.json"])
    assert refused.exit_code == 2 and Path("notes.json").read_text() == "{}"


def test_init_names_it_when_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"model_type": "llama", "num_attention_heads": 32, "hidden_size": 4096, "num_key_value_heads": 8,
              "max_position_embeddings": 8192, "num_hidden_layers": 32}  # fmt: skip
    Path("config.json").write_text(json.dumps(config))
    made = CliRunner().invoke(
        main, ["init", "--from", "config.json", "--out", "specs/s.yaml", "--schema", "specs/x.schema.json"]
    )
    assert made.exit_code == 0, made.output
    text = Path("specs/s.yaml").read_text("utf-8")
    assert text.splitlines()[0] == "# yaml-language-server: $schema=x.schema.json"
    VALIDATOR.validate(yaml.safe_load(text))
    assert yaml.safe_load(text)["name"] == "s", "named after its file, so that two specs differ"
