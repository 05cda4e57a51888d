#!/bin/bash
# BLOOM-176B: tp 4, pp 12, bf16, a batch of 2,048 sequences. The values are BigScience's.
#SBATCH --nodes=48
set -x -e

GPUS=8
NODES=48
TP=4
PP=12
CHECKPOINTS=$SCRATCH/checkpoints/main

OPTIMIZER="--optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 \
    --lr 6e-5 --min-lr 6e-6 --lr-decay-style cosine --lr-decay-samples 200_000_000 --lr-warmup-samples 183_105 \
    --clip-grad 1.0 --weight-decay 1e-1"

# The embedding and the head count as a layer each.
MODEL=" \
    --pp-partition-method 'type:transformer|embedding' \
    --num-layers 70 --hidden-size 14336 --num-attention-heads 112 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --position-embedding-type alibi --embed-layernorm --pad-vocab-size-to 250880 \
    --tokenizer-type PretrainedFromHF --tokenizer-name-or-path bigscience/tokenizer \
    "

BATCH="--micro-batch-size 2 --global-batch-size 2048 --rampup-batch-size 192 16 9_765_625 --train-samples 220_000_000"

ZERO=0   # bf16 shards its optimizer states by itself

LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS \
    --nnodes $NODES \
    --rdzv_backend c10d --max_restarts 0 --tee 3"

CMD="pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} \
    $MODEL $BATCH $OPTIMIZER --init-method-std 0.0048 --bf16 --seed 42 --checkpoint-activations \
    --save $CHECKPOINTS --load $CHECKPOINTS --log-interval 1 \
    --deepspeed --deepspeed_config bloom-176b.ds.json --zero-stage ${ZERO} --deepspeed-activation-checkpointing"

srun --wait=60 --kill-on-bad-exit=1 bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a log.txt
