"""How freely a request is spoken: the numbers a sampler takes, by name or one by one. Pure."""

import math
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Style:
    """temperature: at an utterance's first frame; it nears min_temperature, exponentially, in decay_frames (to 1 / e).

    guidance 1 is none: above it, logits move away from what the model would say with no text to read. depth: how many
    codebooks of a frame are made; None: all that the model has.
    """

    temperature: float
    top_k: int
    top_p: float = 1.0
    min_p: float = 0.0
    min_temperature: float | None = None  # None: it stays as it is
    decay_frames: int = 25
    guidance: float = 1.0
    depth: int | None = None

    def temperature_at(self, frame: int) -> float:
        """Of an utterance's frame, counted from 0."""
        if self.min_temperature is None or self.min_temperature >= self.temperature:
            return self.temperature
        return self.min_temperature + (self.temperature - self.min_temperature) * math.exp(-frame / self.decay_frames)


# For a model whose config.json has none of its own. The true model's reference draws at 0.9 from 50.
PRESETS = {
    "stable": Style(temperature=0.7, top_k=30, min_p=0.05, min_temperature=0.5),
    "natural": Style(temperature=0.9, top_k=50),
    "expressive": Style(temperature=1.0, top_k=100, top_p=0.98),
}
NAMES = tuple(PRESETS)
FIELDS = tuple(asdict(PRESETS["natural"]))


def chosen(presets: dict[str, Style], preset: str | None, single: dict[str, float | None]) -> Style:
    """The preset (None: natural) with what was asked for one by one in its place."""
    style = presets[preset or "natural"]
    given = {name: value for name, value in single.items() if value is not None}
    if given.get("temperature") is not None and "min_temperature" not in given:
        given["min_temperature"] = None  # a temperature of its own is meant to stay
    return replace(style, **given)
