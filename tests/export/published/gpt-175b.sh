#!/bin/bash
# GPT-3 175B: tp 8, pp 16, fp16, a batch of 1,536 sequences on 1,024 GPUs. The values are Megatron-LM's example's.
#SBATCH --nodes=128 --exclusive --ntasks-per-node=8 --job-name=gpt3_175b

options=" \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 16 \
    --num-layers 96 \
    --hidden-size 12288 \
    --num-attention-heads 96 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --micro-batch-size 1 \
    --global-batch-size 1536 \
    --rampup-batch-size 16 16 5859375 \
    --train-samples 146484375 \
    --lr 6.0e-5 \
    --min-lr 6.0e-6 \
    --data-path ${DATA:-my-text_document} \
    --vocab-file gpt2-vocab.json \
    --clip-grad 1.0 \
    --weight-decay 0.1 \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --init-method-std 0.006 \
    --fp16 \
    --checkpoint-activations "

run_cmd="python -u ${DIR}/pretrain_gpt.py $@ ${options}"

srun -l --output=log.txt sh -c "${run_cmd}"
