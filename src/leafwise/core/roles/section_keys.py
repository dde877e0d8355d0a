"""The keys at the top of training checkpoints, as the tools write them, by what is below them.

From the examples of PyTorch and torchvision, timm, nanoGPT, Lightning, MMEngine, detectron2, fairseq, DeepSpeed,
Megatron, Composer, Ultralytics, Apex, Hugging Face Trainer and Accelerate, and JAX. In lower case, with underscores.
"""


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A mapping with arrays below one of these is a training checkpoint. Copies made by averaging are weights, too.
MODEL = _keys("""
    model model_state model_state_dict model_weights module net net_state_dict network params state_dict weights
    averaged_model ema ema_model ema_state_dict model_ema state_dict_ema swa swa_model swa_state_dict
""")

OPTIMIZER = _keys("""
    last_optimizer_state opt opt_state opt_states optim optim_state optim_state_dict optimizer optimizer_state
    optimizer_state_dict optimizer_states optimizer_weights optimizers
""")

# Inside the state of the optimizers of DeepSpeed, Megatron and Apex, which contain the optimizer of PyTorch.
INSIDE_OPTIMIZER = _keys("""
    base_optimizer_state fp32_flat_groups fp32_from_fp16 fp32_from_fp16_params fp32_groups
    single_partition_of_fp32_groups
""")

_RANDOM = """
    cpu_rng_state cuda_rng_state cuda_rng_state_all cuda_rng_states np_rng_state numpy_random_seed numpy_rng_state
    prng_key python_rng_state random_rng_state random_state random_states rng rng_key rng_state rng_states
    rng_tracker_states rngs seed seeds torch_cuda_manual_seed torch_manual_seed torch_rng_state
"""
_SCHEDULES_AND_SCALES = """
    lr_sched lr_scheduler lr_scheduler_state lr_scheduler_state_dict lr_schedulers opt_param_scheduler param_schedulers
    scheduler scheduler_state scheduler_state_dict schedulers warmup_scheduler
    amp amp_scaler dynamic_scale grad_scaler loss_scale loss_scaler mixedprecision mixedprecisionplugin
    native_amp_scaling_state scaler scaler_state scaler_state_dict
"""
_COUNTERS_AND_METRICS = """
    epoch epochs global_step global_steps iter iter_num iteration iterations num_updates step steps updates
    best_acc best_fitness best_metric best_score best_val_loss history log logs loss losses message_hub metric metrics
    results test_loss test_losses train_loss train_losses train_metrics train_results val_loss val_losses val_metrics
    valid_loss valid_losses
"""
_OPTIONS_AND_LOOPS = """
    args callback callback_states callbacks cfg config data_sampler dataloader dataloader_state dataset_state
    extra_state hparams hyper_parameters loops meta model_args model_config optimizer_history options opts random_ltd
    replay replay_buffer rerun_state_machine sampler sampler_state task_state train_args train_dataloader
"""
REST = _keys(_RANDOM + _SCHEDULES_AND_SCALES + _COUNTERS_AND_METRICS + _OPTIONS_AND_LOOPS)

BUFFERS = _keys("batch_stats")

# Below one of these, there may be a whole training checkpoint.
WRAPPERS = _keys("checkpoint ckpt state train_state trainer")
