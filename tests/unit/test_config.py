"""Settings: which origin wins, and what is refused by name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from headwater.config import PROFILES, RULES, Settings, checked, resolve, spark_options, written
from headwater.errors import InvalidSetting

LAYERS = ("flag", "environment", "table", "server")
SWITCHES = ("event_driven_wake", "parallel_refresh_mode", "tiered_scheduling", "adaptive_workers", "drain")


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
        ("scheduler_interval_ms", "49", "setting scheduler_interval_ms: 49 is below 50"),
        ("scheduler_interval_ms", "60001", "setting scheduler_interval_ms: 60001 is above 60000"),
        ("max_concurrent_refreshes", "0", "setting max_concurrent_refreshes: 0 is below 1"),
        ("max_concurrent_refreshes", "65", "setting max_concurrent_refreshes: 65 is above 64"),
        ("max_dynamic_refresh_workers", "0", "setting max_dynamic_refresh_workers: 0 is below 1"),
        ("max_dynamic_refresh_workers", "65", "setting max_dynamic_refresh_workers: 65 is above 64"),
        ("per_database_worker_quota", "-1", "setting per_database_worker_quota: -1 is below 0"),
        ("per_database_worker_quota", "65", "setting per_database_worker_quota: 65 is above 64"),
        ("min_workers", "0", "setting min_workers: 0 is below 1"),
        ("max_workers", "65", "setting max_workers: 65 is above 64"),
        ("merge_work_mem_mb", "-1", "setting merge_work_mem_mb: -1 is below 0"),
        ("merge_work_mem_mb", "2097152", "setting merge_work_mem_mb: 2097152 is above 2097151"),
        ("delta_work_mem_cap_mb", "-1", "setting delta_work_mem_cap_mb: -1 is below 0"),
        ("drain", "maybe", "setting drain: 'maybe' is not on or off"),
        ("event_driven_wake", "", "setting event_driven_wake: '' is not on or off"),
        (
            "connection_pooler_mode",
            "session",
            "setting connection_pooler_mode: 'session' is not auto or none or transaction",
        ),
        (
            "profile",
            "fast",
            "setting profile: 'fast' is not none or low-latency or high-throughput or resource-constrained",
        ),
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
        ("scheduler_interval_ms", "50", 50),
        ("scheduler_interval_ms", "60000", 60_000),
        ("max_dynamic_refresh_workers", "64", 64),
        ("per_database_worker_quota", "0", 0),
        ("merge_work_mem_mb", "2097151", 2_097_151),
        ("connection_pooler_mode", "Transaction", "transaction"),
        ("profile", " Low-Latency ", "low-latency"),
        *((name, text, True) for name in SWITCHES for text in ("on", "TRUE", " yes ", "1")),
        *((name, text, False) for name in SWITCHES for text in ("off", "False", "no", "0")),
    ],
)
def test_a_value_is_read(name: str, text: str, value: object) -> None:
    assert checked(name, text) == value


def test_a_value_is_written_as_it_is_read() -> None:
    for field in fields(Settings):
        value = getattr(Settings(), field.name)
        assert checked(field.name, written(value)) == value
    assert [written(True), written(False)] == ["on", "off"]


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("none", Settings()),
        (
            "low-latency",
            Settings(
                profile="low-latency",
                scheduler_interval_ms=200,
                event_driven_wake=True,
                parallel_refresh_mode=True,
                max_dynamic_refresh_workers=8,
                tiered_scheduling=True,
            ),
        ),
        (
            "high-throughput",
            Settings(
                profile="high-throughput",
                scheduler_interval_ms=500,
                parallel_refresh_mode=True,
                max_dynamic_refresh_workers=16,
                max_concurrent_refreshes=8,
                per_database_worker_quota=8,
                tiered_scheduling=True,
                merge_work_mem_mb=128,
            ),
        ),
        (
            "resource-constrained",
            Settings(
                profile="resource-constrained",
                scheduler_interval_ms=2000,
                parallel_refresh_mode=True,
                max_dynamic_refresh_workers=2,
                max_concurrent_refreshes=2,
                tiered_scheduling=True,
                merge_work_mem_mb=32,
                delta_work_mem_cap_mb=256,
            ),
        ),
    ],
)
def test_a_profile_stands_for_several_settings(profile: str, expected: Settings) -> None:
    settings, shown = resolve(("table", {"profile": profile}))
    assert settings == expected
    origins = {setting.name: setting.origin for setting in shown}
    given = PROFILES.get(profile, {})
    assert {name for name, origin in origins.items() if origin == f"profile {profile}"} == given.keys()
    assert {name for name, origin in origins.items() if origin == "table"} == {"profile"}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_profile_is_weaker_than_each_layer_wherever_it_was_chosen(layer: str) -> None:
    layers = [(name, {"scheduler_interval_ms": "300"} if name == layer else {}) for name in LAYERS]
    layers[0][1]["profile"] = "low-latency"
    settings, shown = resolve(*layers)
    assert (settings.scheduler_interval_ms, settings.max_dynamic_refresh_workers) == (300, 8)
    assert {setting.origin for setting in shown if setting.name == "scheduler_interval_ms"} == {layer}


def test_the_strongest_profile_counts_alone() -> None:
    settings, _ = resolve(("table", {"profile": "low-latency"}), ("server", {"profile": "high-throughput"}))
    assert (settings.scheduler_interval_ms, settings.merge_work_mem_mb) == (200, 0)
    settings, _ = resolve(("flag", {"profile": "none"}), ("table", {"profile": "low-latency"}))
    assert settings == Settings()


def test_a_malformed_one_is_named_with_its_origin() -> None:
    for name, text in (("profile", "fast"), ("drain", "perhaps")):
        with pytest.raises(InvalidSetting, match=f"setting {name}: '{text}' is not") as refused:
            resolve(("flag", {}), ("table", {name: text}))
        assert refused.value.detail == "that is what the table says"


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
