"""The model of any Mac: arithmetic that can be done by hand, and the count of launches it rests on."""

import json
from dataclasses import replace

import pytest

from docs import performance
from misod.weights import predict
from misod.weights.dims import MISO_8B
from misod.weights.models import bundled


@pytest.mark.parametrize("chip", predict.GB_PER_S)
def test_every_chip_is_known_by_what_sysctl_says(chip):
    assert predict.chip_of(f"Apple {chip}") == chip


@pytest.mark.parametrize(
    "brand", ["Intel(R) Core(TM) i9-9880H CPU @ 2.30GHz", "Apple M9", "Apple M1 Mega", "Apple", "", "Apple M1 Pro (VM)"]
)
def test_no_other_chip_is_guessed_at(brand):
    assert predict.chip_of(brand) is None


def test_a_frame_takes_between_the_longer_and_the_sum_of_reading_and_launching():
    span = predict.frame(MISO_8B, "q4", gb_per_s=100, launch_us=10)
    assert span.low_ms == pytest.approx(93.2, abs=0.5)  # 9.32 GB
    assert span.high_ms - span.low_ms == pytest.approx(37.66, abs=0.01)  # 3,766 launches
    fast = predict.frame(MISO_8B, "q4", gb_per_s=1e6, launch_us=10)
    assert fast.low_ms == pytest.approx(37.66, abs=0.01)  # then launches are the longer


@pytest.mark.parametrize("precision", performance.PRECISIONS)
def test_more_bandwidth_is_never_slower(precision):
    times = [predict.frame(MISO_8B, precision, gb).high_ms for gb in sorted(set(predict.GB_PER_S.values()))]
    assert times == sorted(times, reverse=True)


def test_the_launches_are_those_that_the_8b_has():
    from benchmarks.frame import as_on_a_gpu, counts, narrow, random_model

    with as_on_a_gpu():
        model = random_model(replace(narrow(MISO_8B), audio_vocab_size=67))  # a small table; the count is the same
    joined = 2 * MISO_8B.audio_num_codebooks  # one each in the count, a copy for every part on a GPU
    assert counts("", model, 1, 1.0, compiled=False)["launching"] + joined == predict.launches(MISO_8B)


def test_the_bundled_voice_on_a_mac_and_elsewhere():
    made = predict.of_model(bundled(), "mixed", "Apple M2 Max")
    assert made["chip"] == "M2 Max" and made["gb_per_s"] == 400 and 0 < made["low_ms"] <= made["high_ms"] < 80
    assert "of this machine's memory is not known" in predict.of_model(bundled(), "mixed", None)["why"]
    assert "of Apple M9 is not known" in predict.of_model(bundled(), "mixed", "Apple M9")["why"]


def test_a_model_of_another_architecture_has_none(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"type": "KITTEN2"}))
    assert "another architecture" in predict.of_model(tmp_path, "q4", "Apple M1")["why"]
