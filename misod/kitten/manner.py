"""How a request is spoken: what config.json says, and what the request says in its place."""

from dataclasses import dataclass, fields, replace

from misod.engine import RowFault, Say
from misod.kitten.sampling import Settings
from misod.kitten.seams import GAP_S
from misod.kitten.text import FIRST, LEAST
from misod.style import Style, chosen

SAMPLING = {  # the wire's names of Settings' fields
    "repetition_penalty": "repetition_penalty",
    "repetition_window": "repetition_window",
    "run_penalty": "token_run_penalty",
    "run_grace": "token_run_grace",
}


@dataclass(frozen=True)
class Manner:
    """What config.json says of how to speak. The fields from `longest` on are a request's own to choose."""

    presets: dict[str, Style]
    decoders: dict[str, str]  # beside the default one: name -> file in the repository
    window: int | None  # of the repetition penalty
    emotion: str  # the control that goes before a text with expression tags; "": none
    longest: int  # characters of a piece
    least: int
    use_reference: bool  # the recording in a prompt, beside the speaker's embedding
    decoder: str
    use_emotion: bool | None = None  # None: where there are expression tags
    gap_s: float = GAP_S

    @classmethod
    def from_dict(cls, config: dict) -> "Manner":
        how = config.get("generation", {})
        presets = {name: Style(**preset) for name, preset in config["decode_presets"].items()}
        presets["natural"] = presets[config.get("default_preset", "stable")]
        decoders, decoder = dict(config.get("decoders", {})), config.get("default_decoder", "default")
        if decoder not in ("default", *decoders):
            raise ValueError(f"its decoder {decoder!r} is none of its own")
        longest = how.get("chunk_chars", 380)
        if longest < FIRST:
            raise ValueError(f"pieces of {longest} characters: {FIRST} is the least")
        return cls(
            presets=presets,
            decoders=decoders,
            window=how.get("repetition_window"),
            emotion=how.get("emotion_control") or "",
            longest=longest,
            least=how.get("chunk_min_chars", LEAST),
            use_reference=how.get("use_reference_prompt", True),
            decoder=decoder,
        )

    def of(self, say: Say, model: str) -> "Manner":
        """As this request has it. Raises RowFault where it wants what the model has not."""
        names = {"chunk_chars": "longest", "chunk_min_chars": "least"}
        given = {names.get(name, name): value for name, value in say.options.items() if name not in SAMPLING}
        if (decoder := given.get("decoder", "default")) not in (known := ["default", *self.decoders]):
            raise RowFault(f"the decoders of {model} are {', '.join(known)}, not {decoder!r}", "bad_value")
        if say.preset is not None and say.preset not in self.presets:
            raise RowFault(f"the presets of {model} are {', '.join(self.presets)}, not {say.preset!r}", "bad_value")
        return replace(self, **given)

    def style(self, say: Say) -> Style:
        return chosen(self.presets, say.preset, say.sampling)

    def settings(self, say: Say) -> Settings:
        """Of the sampler."""
        style = self.style(say)
        taken = {field.name: getattr(style, field.name) for field in fields(Settings) if hasattr(style, field.name)}
        asked = {SAMPLING[name]: value for name, value in say.options.items() if name in SAMPLING}
        return Settings(**({"repetition_window": self.window} | taken | asked))
