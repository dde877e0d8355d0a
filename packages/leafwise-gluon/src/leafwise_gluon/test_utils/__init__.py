"""`mxnet.test_utils`: comparing arrays, and making random ones, as MXNet's own tests do."""

from leafwise_gluon.context import current_context
from leafwise_gluon.environment import getenv, setenv
from leafwise_gluon.modes import use_np
from leafwise_gluon.test_utils.comparing import (
    almost_equal,
    assert_allclose,
    assert_almost_equal,
    assert_almost_equal_ignore_nan,
    assert_almost_equal_with_err,
    assert_exception,
    checkShapes,
    same,
    same_array,
)
from leafwise_gluon.test_utils.consistency import check_gluon_hybridize_consistency
from leafwise_gluon.test_utils.making import (
    assign_each,
    assign_each2,
    collapse_sum_like,
    create_2d_tensor,
    create_vector,
    np_reduce,
    rand_coord_2d,
    rand_ndarray,
    rand_shape_2d,
    rand_shape_3d,
    rand_shape_nd,
    random_arrays,
    random_sample,
    random_uniform_arrays,
)
from leafwise_gluon.test_utils.surroundings import (
    default_context,
    default_dtype,
    environment,
    is_cd_run,
    is_op_runnable,
    list_gpus,
)
from leafwise_gluon.test_utils.tolerances import (
    default_atols,
    default_numeric_eps,
    default_rtols,
    effective_dtype,
    get_atol,
    get_etol,
    get_rtol,
    get_tolerance,
    get_tols,
)
from leafwise_gluon.utils import download

default_device = default_context

__all__ = [
    "almost_equal",
    "assert_allclose",
    "assert_almost_equal",
    "assert_almost_equal_ignore_nan",
    "assert_almost_equal_with_err",
    "assert_exception",
    "assign_each",
    "assign_each2",
    "checkShapes",
    "check_gluon_hybridize_consistency",
    "collapse_sum_like",
    "create_2d_tensor",
    "create_vector",
    "current_context",
    "default_atols",
    "default_context",
    "default_device",
    "default_dtype",
    "default_numeric_eps",
    "default_rtols",
    "download",
    "effective_dtype",
    "environment",
    "get_atol",
    "get_etol",
    "get_rtol",
    "get_tolerance",
    "get_tols",
    "getenv",
    "is_cd_run",
    "is_op_runnable",
    "list_gpus",
    "np_reduce",
    "rand_coord_2d",
    "rand_ndarray",
    "rand_shape_2d",
    "rand_shape_3d",
    "rand_shape_nd",
    "random_arrays",
    "random_sample",
    "random_uniform_arrays",
    "same",
    "same_array",
    "setenv",
    "use_np",
]
