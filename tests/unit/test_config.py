"""Settings: flag > variable > file > default, and each mistake is one line that names where it was made."""

from dataclasses import fields

import pytest

from misod.config import ConfigError, Settings, load_settings, variable


def load(tmp_path, toml="", flags=None, environ=None) -> Settings:
    config = tmp_path / "config.toml"
    config.write_text(toml)
    return load_settings(config, flags or {}, environ or {})


def mistake(*args, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_without_a_file_the_defaults_hold(tmp_path):
    assert load_settings(tmp_path / "none.toml", {}, {}) == Settings()


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(tmp_path):
    toml, environ = "max_rows = 2", {"MISO_MAX_ROWS": "3"}
    assert load(tmp_path).max_rows == 8
    assert load(tmp_path, toml).max_rows == 2
    assert load(tmp_path, toml, environ=environ).max_rows == 3
    assert load(tmp_path, toml, flags={"max_rows": "4"}, environ=environ).max_rows == 4
    assert load(tmp_path, toml, flags={"max_rows": None}, environ=environ).max_rows == 3


def test_a_variable_set_to_nothing_is_not_set(tmp_path):
    assert load(tmp_path, 'model = "nano"', environ={"MISO_MODEL": ""}).model == "nano"


@pytest.mark.parametrize("f", fields(Settings), ids=lambda f: f.name)
def test_every_setting_is_taken_from_each_place_and_keeps_its_type(tmp_path, f):
    text = {"model": "nano", "log_level": "debug"}.get(f.name, "5")
    for made in (
        load(tmp_path, f'{f.name} = "{text}"' if type(f.default) is str else f"{f.name} = {text}"),
        load(tmp_path, environ={variable(f.name): text}),
        load(tmp_path, flags={f.name: text}),
    ):
        assert getattr(made, f.name) == type(f.default)(text)
        assert type(getattr(made, f.name)) is type(f.default)


@pytest.mark.parametrize("f", [f for f in fields(Settings) if f.metadata["low"] is not None], ids=lambda f: f.name)
def test_a_number_is_taken_at_its_range_and_refused_beyond(tmp_path, f):
    low, high = f.metadata["low"], f.metadata["high"]
    for inside in (low, high):
        assert getattr(load(tmp_path, flags={f.name: f"{type(f.default)(inside)}"}), f.name) == inside
    for outside in (low - 1, high * 2 + 1):
        text = f"{type(f.default)(outside)}"
        for line, origin in (
            (mistake(tmp_path, flags={f.name: text}), f"--{f.name.replace('_', '-')}"),
            (mistake(tmp_path, environ={variable(f.name): text}), variable(f.name)),
            (mistake(tmp_path, f"{f.name} = {text}"), f"{f.name} in {tmp_path / 'config.toml'}"),
        ):
            assert line.startswith(origin)
            assert f"{low:.9g}..{high:.9g}" in line


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        ("max_rows = 8.5", "8.5 is not a whole number"),
        ("max_rows = true", "True is not a whole number"),
        ("max_rows = inf", "inf is not a whole number"),
        ('max_rows = "many"', "'many' is not a whole number"),
        (f"max_rows = {10**400}", "is not within 1..64"),
        (f"drain_s = {10**400}", "is not a number"),
        ("drain_s = nan", "is not within"),
        ("drain_s = inf", "is not within"),
        ("drain_s = 2026-11-29", "is not a number"),
        ("drain_s = []", "is not a number"),
        ("model = 5", "5 is not text"),
        ("model = {}", "is not text"),
        ('log_level = "loud"', "is not debug, info, warning or error"),
    ],
)
def test_a_wrong_value_is_named_with_its_origin(tmp_path, toml, reason):
    line = mistake(tmp_path, toml)
    assert reason in line
    assert line.startswith(f"{toml.split()[0]} in {tmp_path / 'config.toml'}: ")


@pytest.mark.parametrize("text", ["many", "nan", "inf", "1e3x", " ", "0x8"])
def test_a_wrong_variable_is_named(tmp_path, text):
    assert mistake(tmp_path, environ={"MISO_DRAIN_S": text}).startswith("MISO_DRAIN_S: ")


def test_an_unknown_setting_is_refused_with_those_there_are(tmp_path):
    line = mistake(tmp_path, "max_row = 3")
    assert "'max_row'" in line
    assert str(tmp_path / "config.toml") in line
    assert "did you mean max_rows?" in line
    line = mistake(tmp_path, "[zzz]\nmax_rows = 3")
    assert "'zzz'" in line and all(f.name in line for f in fields(Settings))


@pytest.mark.parametrize("toml", ["max_rows =", "= 3", "max_rows = 3\nmax_rows = 4", "[", "\x00"])
def test_bad_toml_names_the_file(tmp_path, toml):
    assert mistake(tmp_path, toml).startswith(f"{tmp_path / 'config.toml'}: ")


def test_a_file_that_is_not_utf8_or_no_file_is_named(tmp_path):
    (tmp_path / "config.toml").write_bytes(b"model = '\xff'")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        load_settings(tmp_path / "config.toml", {}, {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="folder: Is a directory"):
        load_settings(tmp_path / "folder", {}, {})
