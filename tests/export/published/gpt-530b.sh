#!/bin/bash
# A GPT of 530B: tp 8, pp 35, fp16, a batch of 192 sequences on 280 GPUs.
GPT_ARGS=(
    --num-layers 105
    --hidden-size 20480
    --num-attention-heads 128
    --seq-length 2048
    --max-position-embeddings 2048
)
RUN_ARGS=(
    --tensor-model-parallel-size 8     # inside of a node
    --pipeline-model-parallel-size 35
    --micro-batch-size 1
    --global-batch-size 192
    --lr 0.000015
    --clip-grad 1.0
    --fp16
    --loss-scale 8192
    --DDP-impl local
    --checkpoint-activations
)
torchrun --nproc_per_node=8 --nnodes=35 pretrain_gpt.py \
    ${GPT_ARGS[@]} \
    ${RUN_ARGS[@]} \
    --data-path data_text_document > log.txt
