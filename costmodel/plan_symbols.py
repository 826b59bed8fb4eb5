"""Input symbols that follow from the plan: name | unit | meaning; `costmodel.symbols` has the other groups."""

PLAN = """
enc_tp | 1 | tensor parallel size of the encoder
enc_pp | 1 | pipeline stages of the encoder, at least one
enc_own | 1 | 1 when the encoder has GPUs of its own
ep | 1 | expert parallel size
etp | 1 | expert tensor parallel size
edp | 1 | ranks that hold the same experts: world / (pp ep etp)
domain | 1 | GPUs of one scale-up (NVLink) domain that the job uses
cp_straddle | 1 | ranks of a context parallel group on the smaller side of a domain's edge, 0 none
dp_straddle | 1 | the same of a data parallel group
ep_straddle | 1 | the same of an expert parallel group
edp_straddle | 1 | the same of a group of ranks that hold the same experts
layers_first | 1 | decoder layers of the first stage
layers_second | 1 | decoder layers of the second stage
layers_fullest | 1 | decoder layers of the fullest stage between the first and the last
fullest_stage | 1 | its number; the first stage is 0
layers_pace | 1 | decoder layers of the stage with most work
layers_last | 1 | decoder layers of the last stage
mtp_heads | 1 | multi-token-prediction heads
mtp_first | 1 | those on the first stage, which is then the only one
mtp_second | 1 | those on the second stage
mtp_fullest | 1 | those on the fullest stage between the first and the last
mtp_pace | 1 | those on the stage with most work
mtp_last | 1 | those on the last stage
instances | 1 | copies of the sharded optimizer state
outer_sharded | 1 | 1 when replicas of an FSDP shard group share the optimizer state
expert_shard | 1 | ranks over which the experts' optimizer state is sharded
dispatch_once | 1 | 1 when a token travels once to each GPU or domain (DeepEP, HybridEP)
dispatch_fused | 1 | 1 when dispatch permutes tokens itself (HybridEP)
dispatch_gather | 1 | 1 when every rank gathers all tokens (allgather dispatcher)
dispatch_sms | 1 | streaming multiprocessors that dispatch and combine take
capacity | 1 | rows of balanced experts over those without drops: the capacity factor they are padded to, else at most 1
capacity_limit | 1 | rows of the busiest expert rank over the mean, at most: a capacity factor
ragged | 1 | 1 when an expert's rows follow the router, 0 when they are padded to a capacity
ep_overlap | 1 | 1 when dispatch and combine run under another micro-batch's compute
delay_wgrad | 1 | 1 when weight gradients are computed apart, under the dispatch
shared_overlap | 1 | 1 when the shared expert computes while tokens travel
grouped | 1 | 1 with grouped GEMMs
permute_fused | 1 | 1 when permutation is one kernel
router_fused | 1 | 1 when the router's kernels are fused
expert_mlp_fused | 1 | 1 when grouped GEMMs of experts are to hold the activation function
quantised_copy | 1 | 1 when a layer keeps a quantised copy of an input that is kept in 16 bits anyway
recompute_moe | 1 | 1 when the whole expert block is computed again
recompute_moe_act | 1 | 1 when the experts' activation function is computed again
recompute_shared_experts | 1 | 1 when the shared experts are computed again
recompute_mla_up_proj | 1 | 1 when MLA's up projections are computed again
recompute_mhc | 1 | 1 when the mixing of hyper-connections is computed again
recompute_ops | 1 | 1 when everything but every other product and the attention core is computed again
graph_attention | 1 | 1 when attention and gated-delta blocks are in CUDA graphs
graph_mlp | 1 | 1 when MLP blocks are
graph_mamba | 1 | 1 when Mamba blocks are
graph_router | 1 | 1 when router and shared experts are
graph_experts | 1 | 1 when dispatch and experts are
offload_share | 1 | share of the layers whose activations wait in host memory
offload_weights | 1 | 1 when the weights of those layers do too
offload_attn_norm | 1 | 1 when the inputs of attention norms wait in host memory
offload_qkv_linear | 1 | 1 when QKV inputs do
offload_core_attn | 1 | 1 when queries, keys and values do
offload_attn_proj | 1 | 1 when the projection's inputs do
offload_mlp_norm | 1 | 1 when the inputs of MLP norms do
offload_expert_fc1 | 1 | 1 when the experts' inputs do
offload_moe_act | 1 | 1 when the experts' FC1 outputs do
offload_fused_group_mlp | 1 | 1 when all that fused experts keep does
muon | 1 | 1 when the optimizer is Muon
optimizer_offload | 1 | share of the optimizer on the host
offload_overlapped | 1 | 1 when copies of the offloaded optimizer overlap
per_token_loss | 1 | 1 when the loss is divided by tokens at the end of a step
checked | 1 | 1 when gradients and loss are checked for NaN, which no graph of the whole step holds
amax_inside | 1 | 1 when maxima of delayed scaling stay among tensor and context ranks
bf16_share | 1 | share of the layers that stay in 16 bits
fp8_attention | 1 | 1 when the attention core runs in FP8
fp8_output | 1 | 1 when the output layer's products are in MXFP8
fsdp_columns | 1 | 1 when FSDP gathers quantised columns for the backward pass, apart from rows
gather_copy_bytes | byte | bytes of a parameter's buffer for the gather beside its quantised copies
bucket | 1 | elements of a gradient bucket, or those that Megatron-Core takes where the plan says none
bucket_said | 1 | 1 when the plan says them
sharp | 1 | 1 when switches of the network are to reduce (SHARP)
user_buffers | 1 | 1 with registered buffers in data-parallel collectives
one_queue | 1 | 1 with CUDA_DEVICE_MAX_CONNECTIONS=1 set by hand
many_queues | 1 | 1 with more than one set by hand, under FSDP or for overlapped experts
cudnn_norms | 1 | 1 when norms are cuDNN's, forward
norm_margin | 1 | streaming multiprocessors that norms leave to communication
vboost | 1 | 1 with clock boost
own_gc | 1 | 1 when each rank collects garbage when it likes
unbound | 1 | 1 when ranks are not bound to cores
overlap_chunks | 1 | chunks of a pipelined tensor-parallel collective
overlap_sms | 1 | streaming multiprocessors that it takes
nvls | 1 | 1 with NVLink SHARP
segments | 1 | 1 with expandable segments, which registered buffers refuse before PyTorch 2.11
stream_records | 1 | 1 when tensors of collectives are recorded on streams
loss_native | 1 | 1 when the fused loss is Megatron-Core's own by choice
rope_split | 1 | 1 when rotary embedding is not fused
activation_split | 1 | 1 when bias and activation function are not fused
residual_split | 1 | 1 when bias, dropout and residual are not fused
accumulate_split | 1 | 1 when weight gradients are added by kernels of their own
defer_wgrad | 1 | 1 when the output layer's weight gradients wait for the flush
deferral_limit | 1 | passes through the output layer whose weight gradients may wait
tp | 1 | tensor parallel size
pp | 1 | pipeline parallel size (stages)
vpp | 1 | virtual pipeline size (model chunks on each stage)
flushes | 1 | times that a step drains the pipeline
cp | 1 | context parallel size
dp | 1 | data parallel size
b | 1 | micro-batch: sequences in one forward pass
m | 1 | micro-batches of one replica in one step
sp | 1 | 1 with sequence parallelism
optimizer_sharded | 1 | 1 when data parallel shards the optimizer state (ZeRO 1 and up)
grads_sharded | 1 | 1 when it shards gradients too (ZeRO 2 and up)
params_sharded | 1 | 1 when it shards parameters too (ZeRO 3)
fsdp | 1 | 1 with fully sharded data parallel
fsdp_copies | 1 | 1 when FSDP copies between flat buffers and parameters (PyTorch)
shard | 1 | ranks over which optimizer state, and with FSDP gradients and parameters, are sharded
cp_p2p | 1 | 1 when context parallel exchanges keys and values in a ring
cp_all_gather | 1 | 1 when it all-gathers them
cp_a2a | 1 | 1 when it exchanges heads for sequence by all-to-all
cp_a2a_size | 1 | ranks of one all-to-all group (1 without, cp with plain a2a)
recompute_layers | 1 | share of the layers whose whole forward pass is computed again
recompute_attention | 1 | 1 when the attention core is computed again
recompute_mlp | 1 | 1 when the MLP is computed again
recompute_norm | 1 | 1 when norms are computed again
recompute_activation | 1 | 1 when the activation function is computed again
unfused | 1 | 1 when attention writes its score matrix
tp_overlap | 1 | 1 when tensor-parallel collectives are pipelined with their GEMMs
overlap_reduce | 1 | 1 when gradients are reduced under the last backward pass
overlap_gather | 1 | 1 when parameters are gathered under the first forward pass
overlap_p2p | 1 | 1 when pipeline send/recv is overlapped (interleaved schedules)
graph | 1 | 1 when kernels are replayed from CUDA graphs
graph_step | 1 | 1 when one graph holds a whole step
grad_bytes | byte | bytes of one gradient element in memory and on the wire
main_grad_bytes | byte | bytes of one gradient element as the optimizer reads it
update_copies | byte | HBM bytes an element of copies between Megatron-Core's optimizer and the model
gather_bytes | byte | bytes of one parameter element on the wire of the gather
param_gather | 1 | 1 when parameters are kept and gathered in FP8
state_bytes | byte | optimizer bytes of one parameter: master copy and two moments
host_state_bytes | byte | those of them that leave the device when the optimizer is offloaded
vpp_group | 1 | micro-batches that pass a virtual stage in a row
fused_loss | 1 | 1 with fused cross-entropy
dropout | 1 | 1 with dropout
"""
