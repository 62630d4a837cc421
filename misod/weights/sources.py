"""What `pull` can fetch: repositories of the Hugging Face Hub, the commit that is taken, what is known of the files.

None of these files was seen where this was written, without a network. What stands here is from public text:
- The maker's file is fp32, 32.8 GB (the model card's listing; mlx-audio #764 says so too): twice the bf16 that the
  reference runs in. Its commit is one that several public logs name. Its sha256 is not known.
- The two copies for MLX: bf16 and 8-bit conversions by mlx-audio's people, about 16.4 and 9 GB. Neither commits
  nor digests are known.
- The codec and its sha256 and size: in the locks of several public projects, all alike. So is kyutai/mimi's.
- The tokenizer: the commit is in many public logs; the sha256 is that of the same file in the Instruct copy of the
  same owner, and so not taken as known here.
What is None is recorded at the first pull, in models/.sources.json, and held to from then on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Known:
    """Of one file, where published."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """One repository. `wanted`: patterns of its files' paths; each but the optional ones must match a file."""

    repo: str
    licence: str
    wanted: tuple[str, ...]
    about_bytes: int  # of the wanted files: what doctor says before the hub has told
    revision: str | None = None  # a commit; None: `main` as it is at the first pull
    optional: tuple[str, ...] = ()
    smaller: str | None = None  # a repository that has the same in fewer bytes
    known: Mapping[str, Known] = field(default_factory=dict)


MODIFIED_MIT = "modified MIT (LICENSE in the repository)"
MODEL_FILES = ("model*.safetensors",)
BESIDE = ("config.json", "LICENSE*")

WEIGHTS = (  # the first is what `pull miso` takes
    Source(
        repo="MisoLabs/MisoTTS",
        revision="ef6b096cc35d3cde6aa0721013648416c14c36b2",
        licence=MODIFIED_MIT,
        wanted=MODEL_FILES,
        optional=BESIDE,
        about_bytes=32_752_530_000,  # 8,188,122,112 values of 4 bytes and a header
        smaller="mlx-community/MisoLabs-MisoTTS-bf16",
    ),
    Source(
        repo="mlx-community/MisoLabs-MisoTTS-bf16",
        licence=MODIFIED_MIT,
        wanted=MODEL_FILES,
        optional=BESIDE,
        about_bytes=16_376_290_000,
    ),
    Source(
        repo="mlx-community/MisoLabs-MisoTTS-8bit",
        licence=MODIFIED_MIT,
        wanted=MODEL_FILES,
        optional=BESIDE,
        about_bytes=9_000_000_000,
    ),
)

CODEC_FILE = "tokenizer-e351c8d8-checkpoint125.safetensors"
CODEC = Source(
    repo="kyutai/moshiko-pytorch-bf16",
    revision="2bfc9ae6e89079a5cc7ed2a68436010d91a3d289",
    licence="CC-BY-4.0",
    wanted=(CODEC_FILE,),  # the repository's model.safetensors is another model, of 15 GB
    optional=("config.json",),  # not there now; a codec of other dims would say so in one
    about_bytes=384_644_900,
    known={CODEC_FILE: Known(384_644_900, "09b782f0629851a271227fb9d36db65c041790365f11bbe5d3d59369cf863f50")},
)

TOKENIZER = Source(
    repo="unsloth/Llama-3.2-1B",  # an ungated copy; meta-llama's own asks for an account
    revision="9535bd9b1d1dea6acafbdc4813b728796aeb28da",
    licence="Llama 3.2 Community License",
    wanted=("tokenizer.json",),
    about_bytes=17_209_920,
)

# KittenTTS 2: the commit is the one that its maker's C++ port pins; the size is by its maker's words, digests are not
# known. Of its codec, commit, size and sha256 are in the locks of public projects, all alike.
KITTEN = Source(
    repo="KittenML/kitten-tts-2",
    revision="f2eee74f4467855ad58fe16f1fb7b7df473263fd",
    licence="Stellon Labs Community License (LICENSE.md in the repository)",
    wanted=(
        "config.json",
        "lm/config.json",
        "lm/tokenizer.json",
        "lm/model-ternary.safetensors",
        "voices/*",
        "speaker/*",
    ),
    optional=("LICENSE*", "lm/tokenizer_config.json", "decoders/*"),
    about_bytes=1_150_000_000,
)
KITTEN_CODEC = Source(
    repo="ResembleAI/chatterbox-turbo",
    revision="749d1c1a46eb10492095d68fbcf55691ccf137cd",
    licence="MIT",
    wanted=("s3gen_meanflow.safetensors",),
    about_bytes=1_064_875_036,
    known={
        "s3gen_meanflow.safetensors": Known(
            1_064_875_036, "d65cb687a2ed581ee6cc297e919ffefa63386944f42364ae13b78a594945514f"
        )
    },
)
