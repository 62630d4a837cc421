#!/bin/bash
# The whole training, side by side, each part until its time: on one GPU, or speech and language model on GPU 0 and codec on 1. Data in $1, results and logs in $2.
# Times in seconds from now: speech until $3, codes fixed at $4, decoder polished until $5, language model until $6.
set -e
data=$1 out=$2 now=$(date +%s) gpus=$(nvidia-smi -L | wc -l)
mkdir -p "$out/shards"
start() { name=$1 gpu=$2; shift 2; CUDA_VISIBLE_DEVICES=$((gpu % gpus)) PYTHONUNBUFFERED=1 setsid nohup python3 -W ignore -m "$@" > "$out/$name.log" 2>&1 & }
start speech 0 training.synthesise --text $data/train.npz --voices $data/voices.npz --weights $data/kokoro_int8_{1,2}.safetensors \
    --out $out/shards --hours "${HOURS:-120}" --until $((now + $3))
start learn 1 training.train_codec learn --shards $out/shards --out $out --until $((now + $4))
start polish 1 training.train_codec polish --shards $out/shards --out $out --until $((now + $5)) --lr 3e-4 --batch 16 --frames 36
start lm 0 training.train_lm --text $data/train.txt --tokenizer $data/tokenizer.json --shards $out/shards --out $out --until $((now + $6))
