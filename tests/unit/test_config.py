"""Settings: which origin wins, and what is refused by name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from headwater.config import RULES, Settings, checked, resolve, spark_options
from headwater.errors import InvalidSetting

LAYERS = ("flag", "environment", "table", "server")


def test_defaults() -> None:
    settings, shown = resolve()
    assert settings == Settings()
    assert {setting.origin for setting in shown} == {"default"}
    assert all(setting.value == setting.default for setting in shown)


def test_every_setting_has_a_rule_with_a_description() -> None:
    assert [field.name for field in fields(Settings)] == list(RULES)
    assert all(rule.description for rule in RULES.values())


@pytest.mark.parametrize("strongest", range(len(LAYERS)))
def test_the_strongest_layer_wins(strongest: int) -> None:
    layers = [
        (name, {"lock_attempts": str(20 + rank)} if rank >= strongest else {})
        for rank, name in enumerate(LAYERS)
    ]
    settings, shown = resolve(*layers)
    assert settings.lock_attempts == 20 + strongest
    [setting] = [setting for setting in shown if setting.name == "lock_attempts"]
    assert (setting.value, setting.origin) == (str(20 + strongest), LAYERS[strongest])
    assert setting.default == str(Settings().lock_attempts) != setting.value


def test_layers_are_merged_setting_by_setting() -> None:
    settings, shown = resolve(("flag", {"verify_max_rows": "3"}), ("table", {"history_retention": "2h"}))
    assert settings == Settings(verify_max_rows=3, history_retention="2h")
    origins = {setting.name: setting.origin for setting in shown}
    assert (origins["verify_max_rows"], origins["history_retention"]) == ("flag", "table")
    assert origins["lock_attempts"] == "default"


@pytest.mark.parametrize("layer", LAYERS)
def test_an_unknown_setting_is_named_with_its_origin(layer: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        resolve(*((name, {"lock_atempts": "1"} if name == layer else {}) for name in LAYERS))
    assert refused.value.message == f"unknown setting 'lock_atempts' in {layer}"
    assert "lock_attempts" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("lock_attempts", "many", "setting lock_attempts: 'many' is not a whole number"),
        ("lock_attempts", "", "setting lock_attempts: '' is not a whole number"),
        ("lock_attempts", "1.5", "setting lock_attempts: '1.5' is not a whole number"),
        ("lock_attempts", "0", "setting lock_attempts: 0 is below 1"),
        ("max_buffer_rows", "-5", "setting max_buffer_rows: -5 is below 1"),
        ("history_retention", "soon", "setting history_retention: 'soon' is not a duration"),
        ("history_retention", "0s", "setting history_retention: '0s' is not longer than zero"),
        ("statement_timeout", "5", "setting statement_timeout: '5' is not a duration"),
        ("spark_master", "", "setting spark_master: '' is no master of Spark"),
        ("spark_master", "cluster", "setting spark_master: 'cluster' is no master of Spark"),
        ("spark_master", "http://host:1", "setting spark_master: 'http://host:1' is no master of Spark"),
        (
            "spark_conf",
            "spark.cores.max 4",
            "setting spark_conf: 'spark.cores.max 4' has 'spark.cores.max', which is not spark.NAME=VALUE",
        ),
        ("spark_conf", "a=1", "setting spark_conf: 'a=1' has 'a=1', which is not spark.NAME=VALUE"),
        ("spark_conf", "spark.a='", 'setting spark_conf: "spark.a=\'" has a quote that does not end'),
        ("spark_ui", "yes", "setting spark_ui: 'yes' is not off or on"),
        ("spark_timeout", "0s", "setting spark_timeout: '0s' is not longer than zero"),
        ("spark_min_rows", "-1", "setting spark_min_rows: -1 is below 0"),
        ("no_such", "1", "there is no setting 'no_such'"),
        ("headwater.no_such", "1", "there is no setting 'headwater.no_such'"),
    ],
)
def test_a_malformed_setting_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        checked(name, text)
    assert refused.value.message == message
    assert refused.value.hint


def test_a_malformed_setting_in_a_layer_is_named() -> None:
    with pytest.raises(InvalidSetting, match="setting max_buffer_rows: 'x' is not a whole number"):
        resolve(("environment", {"max_buffer_rows": "x"}))


def test_a_malformed_setting_that_a_stronger_layer_hides_does_no_harm() -> None:
    settings, _ = resolve(("flag", {"lock_attempts": "4"}), ("table", {"lock_attempts": "x"}))
    assert settings.lock_attempts == 4


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_buffer_rows", "1_000", 1000),
        ("lock_attempts", "1", 1),
        ("max_buffer_rows", " 7 ", 7),
        ("headwater.max_buffer_rows", "7", 7),
        ("history_retention", " 3d ", "3d"),
        ("statement_timeout", "30s", "30s"),
        ("statement_timeout", "0", "0ms"),
        ("statement_timeout", "0s", "0ms"),
        ("statement_timeout", " 0ms ", "0ms"),
        ("spark_master", " local ", "local"),
        ("spark_master", "local[4,2]", "local[4,2]"),
        ("spark_master", "local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark_master", "spark://a:7077,b:7077", "spark://a:7077,b:7077"),
        ("spark_master", "k8s://https://host:6443", "k8s://https://host:6443"),
        ("spark_master", "yarn", "yarn"),
        ("spark_master", "sc://host:15002/;use_ssl=true", "sc://host:15002/;use_ssl=true"),
        ("spark_conf", " spark.cores.max=4 ", "spark.cores.max=4"),
        ("spark_ui", "ON", "on"),
        ("spark_min_rows", "0", 0),
    ],
)
def test_a_value_is_read(name: str, text: str, value: object) -> None:
    assert checked(name, text) == value


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_a_default_is_a_value_that_is_taken(field: object) -> None:
    name, default = getattr(field, "name"), getattr(field, "default")  # noqa: B009
    assert checked(name, str(default)) == default


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("  ", {}),
        ("spark.a=1", {"spark.a": "1"}),
        ("spark.a=1 spark.b=2\n\tspark.c=3", {"spark.a": "1", "spark.b": "2", "spark.c": "3"}),
        ("spark.a=1,spark.b=2, spark.c=3,", {"spark.a": "1", "spark.b": "2", "spark.c": "3"}),
        ("spark.jars=x.jar,y.jar,spark.a=", {"spark.jars": "x.jar,y.jar", "spark.a": ""}),
        ("spark.a=b=c", {"spark.a": "b=c"}),
        ("spark.a=1 spark.a=2", {"spark.a": "2"}),
        (
            "spark.driver.extraJavaOptions='-Xss4m -Dx=y' spark.a=1",
            {"spark.driver.extraJavaOptions": "-Xss4m -Dx=y", "spark.a": "1"},
        ),
    ],
)
def test_options_for_spark(text: str, options: dict[str, str]) -> None:
    assert spark_options(text) == options
