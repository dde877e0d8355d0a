"""The rows of the table for what differs from MXNet: names or patterns, and how they differ."""

DIFFERENT: tuple[tuple[str, str], ...] = (
    (
        "mxnet.gluon.block.HybridBlock",
        "In 1.x, a network that is hybridized before its first input draws deferred random values in the order of its "
        "graph: the left side of `a + b` first. Here, it draws them in the order in which the layers run, as without "
        "`hybridize()`. Networks without branches get the same values.",
    ),
    (
        "mxnet.gluon.nn.basic_layers.Dense",
        "If only the weight is constant (`grad_req='null'`), MXNet's CPU build does not compute the gradient of a "
        "float32 bias, and leaves the old one. Here, it is computed, as MXNet does for float64.",
    ),
    (
        "mxnet.gluon.nn.conv_layers.*MaxPool*",
        "After `record(train_mode=False)`, the gradient in MXNet's CPU build comes from uninitialised memory. Here, it "
        "is that of training.",
    ),
    (
        "mxnet.initializer.Orthogonal",
        "The matrix comes from a singular value decomposition, whose signs depend on NumPy's version.",
    ),
    (
        "mxnet.gluon.data.dataloader.DataLoader",
        "In 2.x, with workers and a dataset of arrays, MXNet reads in C++: it gives tuples in place of lists, and "
        "shuffles with another generator. Here, batches are lists, and NumPy's generator shuffles, as without workers. "
        "Worker processes are made by fork; `auto_reload` has no effect.",
    ),
    (
        "mxnet.gluon.data.vision.datasets.*MNIST mxnet.gluon.data.vision.datasets.CIFAR*",
        "Nothing is downloaded: the files must be in `root`. They may be decompressed.",
    ),
    (
        "mxnet.gluon.data.vision.transforms.RandomFlip* mxnet.gluon.data.vision.transforms.image.RandomFlip*",
        "MXNet 1.x leaves the middle column or row of a mirrored image of odd size uninitialised; here, it is copied.",
    ),
    ("mxnet.numpy.random.choice", "In 2.x, MXNet ignores `p`. Here, the numbers are those of MXNet 1.x."),
    ("mxnet.numpy.random.multivariate_normal", "The distribution is MXNet's, the numbers are not."),
    (
        "mxnet.numpy.random.exponential mxnet.numpy.random.gamma mxnet.numpy.random.gumbel mxnet.numpy.random.l* "
        "mxnet.numpy.random.pareto mxnet.numpy.random.power mxnet.numpy.random.rayleigh mxnet.numpy.random.weibull",
        "The numbers may differ from MXNet's in the last bits.",
    ),
    (
        "mxnet.gluon.rnn.rnn_layer.*",
        "With `dropout`, other elements are dropped between the layers than in MXNet.",
    ),
    ("mxnet.gluon.data.dataset.RecordFileDataset", "It raises an error: RecordIO files are not supported."),
    ("mxnet.gluon.utils.download", "It gives a file that is there already, and otherwise raises an error."),
    ("mxnet.engine.*", "The size is remembered, but has no effect: PyTorch runs each operation at once."),
    ("mxnet.runtime.Features mxnet.runtime.feature_list", "Only CUDA, CUDNN and INT64_TENSOR_SIZE can be there."),
    (
        "mxnet.autograd.backward",
        "With `grad_req='add'`, some functions of MXNet overwrite or spoil the gradient of an array that they are "
        "applied to directly: `copy`, `mean`, `clip`, `cumsum`, `split`, `flip`, `np.linalg.norm`, `np.where` of "
        "different shapes and, in 1.x, `astype`. Here, gradients are added.",
    ),
    ("mxnet.io.io.NDArrayIter", "`last_batch_handle='roll_over'` raises an error."),
)
