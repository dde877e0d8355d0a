"""The rows of the table for what the front end does not have: names or patterns, and what to use instead."""

_GRAPHS = "graphs of symbols are not supported: write a Block whose forward computes with np or nd"
_MODULE = "Module is not supported: write the training loop with gluon.Trainer"
_IMAGES = "decode and change images with another library, such as Pillow, and make arrays of the results"
_DEVICES = "several devices are not supported: use gluon.Trainer on one device, or torch.distributed"
_SPARSE = "sparse arrays are not supported: use dense ones"
_INTERNAL = "it is a part of MXNet's C library, which does not exist here"
_LOADER = "gluon.data.DataLoader does this itself"
_UPDATE = "use gluon.Trainer or mx.optimizer, which update parameters"

# None of the names that these rows cover exists.
MISSING: tuple[tuple[str, str], ...] = (
    # Graphs, and what runs and trains them.
    ("mxnet.symbol.* mxnet.symbol_doc.*", _GRAPHS),
    ("mxnet.executor.* mxnet.executor_manager.* mxnet.visualization.*", _GRAPHS),
    ("mxnet.attribute.* mxnet.name.*", "names and attributes of symbols are not supported: use prefix= of a Block"),
    ("mxnet.module.* mxnet.monitor.* mxnet.misc.*", _MODULE),
    ("mxnet.model.FeedForward mxnet.model.BatchEndParam mxnet.model.SKLEARN_INSTALLED", _MODULE),
    ("mxnet.callback.do_checkpoint mxnet.callback.module_checkpoint", "use block.save_parameters"),
    ("mxnet.callback.LogValidationMetricsCallback", _MODULE),
    ("mxnet.rnn.*", "these cells are made of symbols: use gluon.rnn"),
    ("mxnet.contrib.onnx.* mxnet.onnx.*", "use torch.onnx: a Block is a torch.nn.Module"),
    ("mxnet.contrib.amp.* mxnet.amp.*", "use block.cast, or torch.autocast: a Block is a torch.nn.Module"),
    ("mxnet.contrib.quantization.*", "use torch.ao.quantization: a Block is a torch.nn.Module"),
    ("mxnet.contrib.*", "mx.contrib is not supported"),
    # Other parts of MXNet that are out of scope.
    ("mxnet.kvstore.*", _DEVICES),
    ("mxnet.image.*", _IMAGES),
    ("mxnet.gluon.data.vision.datasets.Image*", _IMAGES),
    ("mxnet.gluon.data.vision.transforms.*Rotat* mxnet.gluon.data.vision.transforms.*.*Rotat*", _IMAGES),
    ("mxnet.recordio.* mxnet.notebook.*", "it is not supported: read files with another library"),
    ("mxnet.gluon.probability.*", "use torch.distributions with x.tensor"),
    ("mxnet.gluon.contrib.estimator.*", "write the training loop with gluon.Trainer"),
    ("mxnet.gluon.contrib.data.text.*", "nothing is downloaded: read the text yourself"),
    ("mxnet.operator.*", "write an autograd.Function, or a Block"),
    ("mxnet.profiler.*", "use torch.profiler"),
    ("mxnet.ndarray.sparse.* mxnet.test_utils.*sparse* mxnet.test_utils.shuffle_csr_column_indices", _SPARSE),
    ("mxnet.util.np_default_dtype", "float32 is the default; pass dtype='float64'"),
    # MXNet's own machinery.
    ("mxnet.cuda.* mxnet.rtc.*", "write CUDA with torch.utils.cpp_extension or Triton"),
    ("mxnet.library.* mxnet.libinfo.find_*", _INTERNAL),
    ("mxnet.container.* mxnet.dlpack.* mxnet.space.* mxnet.error.*", _INTERNAL),
    (
        "mxnet.numpy_op_fallback.* mxnet.numpy_dispatch_protocol.* mxnet.ndarray_doc.*",
        _INTERNAL,
    ),
    ("mxnet.ndarray.register.* mxnet.ndarray.CachedOp mxnet.runtime.get_*", _INTERNAL),
    ("mxnet.gluon.data.dataloader.DataLoaderV1 mxnet.gluon.data.dataloader.*Queue", _LOADER),
    ("mxnet.gluon.data.dataloader.*_v1 mxnet.gluon.data.dataloader.*ndarray", _LOADER),
    ("mxnet.gluon.data.dataloader.ConnectionWrapper", _LOADER),
    ("mxnet.log.*", "use Python's logging"),
    ("mxnet.registry.*", "use a dict"),
)

# What is missing in modules of which a part exists.
OTHERS: tuple[tuple[str, str], ...] = (
    ("mxnet.ndarray.*_update* mxnet.ndarray.op.*_update* mxnet.ndarray.contrib.*_update*", _UPDATE),
    ("mxnet.ndarray.*multi_* mxnet.ndarray.*reset_arrays mxnet.ndarray.*amp_*", _UPDATE),
    (
        "mxnet.ndarray.*quantize* mxnet.ndarray.contrib.*intgemm* mxnet.numpy_extension.*quantize* "
        "mxnet.numpy_extension.*intgemm* mxnet.numpy_extension.contrib_calibrate_entropy",
        "integer arithmetic of quantized networks is not supported",
    ),
    (
        "mxnet.ndarray.contrib.*DeformableConvolution mxnet.numpy_extension.*deformable*",
        "use torchvision.ops.deform_conv2d",
    ),
    ("mxnet.ndarray.contrib.MultiBoxTarget mxnet.numpy_extension.multibox_target", "compute the targets with box_iou"),
    ("mxnet.ndarray.contrib.MultiBoxDetection mxnet.numpy_extension.multibox_detection", "use box_nms"),
    ("mxnet.ndarray.contrib.*", "write it with the functions of nd"),
    ("mxnet.ndarray.image.* mxnet.ndarray.numpy_extension.image.* mxnet.numpy_extension.image.*", _IMAGES),
    ("mxnet.ndarray.numpy.* mxnet.ndarray.numpy_extension.*", "use mx.np and mx.npx, which have the same functions"),
    (
        "mxnet.ndarray.random_* mxnet.ndarray.op.random_* mxnet.ndarray.sample_* mxnet.ndarray.op.sample_*",
        "use nd.random",
    ),
    ("mxnet.ndarray.random.binomial", "use torch.distributions.Binomial, which draws other numbers"),
    ("mxnet.ndarray.linalg* mxnet.ndarray.op.linalg*", "use torch.linalg with x.tensor"),
    ("mxnet.ndarray.*", "write it with other functions of nd, or with those of PyTorch, which accept arrays"),
    ("mxnet.numpy.linalg.* mxnet.numpy.fallback_linalg.*", "use torch.linalg with x.tensor, or NumPy with x.asnumpy()"),
    ("mxnet.numpy.random.*", "use np.random.uniform or np.random.normal, or NumPy and np.array"),
    ("mxnet.numpy.*", "use NumPy with x.asnumpy(), or PyTorch's functions, which accept arrays"),
    ("mxnet.numpy_extension.*", "use torch.nn.functional with arrays"),
    ("mxnet.gluon.nn.*", "use a layer of torch.nn, which can be added to a Sequential"),
    ("mxnet.gluon.rnn.rnn_cell.dynamic_unroll mxnet.gluon.contrib.rnn.*dynamic_unroll", "use the unroll of the cell"),
    ("mxnet.gluon.rnn.*", "write the cell as a HybridRecurrentCell of your own"),
    ("mxnet.gluon.contrib.*", "write it as a Block"),
    ("mxnet.gluon.loss.*", "write it as a Block, or use torch.nn"),
    ("mxnet.gluon.model_zoo.*", "build the network of gluon.nn layers"),
    ("mxnet.gluon.data.*", "write it as a function, and use it with dataset.transform"),
    ("mxnet.gluon.parameter.tensor_types", "use (mx.nd.NDArray,)"),
    ("mxnet.gluon.parameter.* mxnet.gluon.block.* mxnet.gluon.trainer.*", "use a Block and a Trainer"),
    ("mxnet.gluon.utils.*", "write it yourself"),
    ("mxnet.gluon.metric.* mxnet.metric.*", "use gluon.metric.CustomMetric with a function of NumPy arrays"),
    ("mxnet.initializer.*", "write an Initializer whose _init_weight fills the array"),
    ("mxnet.optimizer.*SGLD", "add the noise to the gradients yourself, and use SGD"),
    ("mxnet.optimizer.*LBSGD", "use SGD with a warm-up from mxnet.lr_scheduler"),
    ("mxnet.optimizer.*LANS", "use LAMB"),
    ("mxnet.optimizer.*", "use another optimizer of gluon.Trainer, or torch.optim on net.parameters()"),
    ("mxnet.lr_scheduler.*", "call trainer.set_learning_rate"),
    ("mxnet.autograd.*", "use autograd.record and backward, or torch.autograd with x.tensor"),
    ("mxnet.context.* mxnet.device.*", "use torch.cuda.mem_get_info"),
    ("mxnet.random.*", "use np.random"),
    ("mxnet.io.*", "use gluon.data.DataLoader"),
    ("mxnet.model.*", "use block.save_parameters and block.load_parameters"),
    ("mxnet.test_utils.*", "it tests MXNet's own operators: use numpy.testing"),
    ("mxnet.base.*", _INTERNAL),
    ("mxnet.util.*", _INTERNAL),
)
