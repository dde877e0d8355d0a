/* Where many tensors are, and their shapes. See snapshots.py in homes/torch.

   Tensors describe themselves by DLPack's interface for C (DLPackExchangeAPI, version 1.3), whose structure this is.
   Called while Python's lock is held. */

struct dl_tensor {
    char *data;
    int32_t device_type, device;
    int32_t axes;
    uint8_t kind, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
};

typedef int describe(void *object, struct dl_tensor *tensor);

/* Writes the facts of each tensor to `facts`: its address, dtype, device and number of axes, its shape and strides.
   Returns the number of words; -1 if a tensor cannot be described, which has raised an error; -2 if there is not enough
   room. */
int64_t leafwise_describe_tensors(describe *get, void *const *objects, int64_t count, int64_t *facts, int64_t room)
{
    int64_t used = 0;
    for (int64_t number = 0; number < count; number++) {
        struct dl_tensor tensor;
        if (get(objects[number], &tensor))
            return -1;
        if (room - used < 3 + 2 * (int64_t)tensor.axes)
            return -2;
        facts[used++] = (int64_t)(intptr_t)(tensor.data + tensor.offset);
        facts[used++] =
            (int64_t)tensor.kind << 56 | (int64_t)tensor.bits << 48 | (int64_t)tensor.lanes << 32 | tensor.axes;
        facts[used++] = (int64_t)tensor.device_type << 32 | (uint32_t)tensor.device;
        for (int32_t axis = 0; axis < tensor.axes; axis++) {
            facts[used++] = tensor.shape[axis];
            facts[used++] = tensor.strides ? tensor.strides[axis] : 0;
        }
    }
    return used;
}

/* Writes seven words for each tensor to `facts`: its address, the bytes of an element, its device, its number of
   elements, whether they are contiguous in C order, and its rows and columns, which are zero unless it is a matrix.
   Returns -1 if a tensor cannot be described, which has raised an error. */
int64_t leafwise_describe_layouts(describe *get, void *const *objects, int64_t count, int64_t *facts)
{
    for (int64_t number = 0; number < count; number++, facts += 7) {
        struct dl_tensor tensor;
        if (get(objects[number], &tensor))
            return -1;
        int64_t size = 1;
        int is_contiguous = 1;
        for (int32_t axis = tensor.axes - 1; axis >= 0; axis--) {
            if (tensor.strides && tensor.shape[axis] != 1 && tensor.strides[axis] != size)
                is_contiguous = 0;
            size *= tensor.shape[axis];
        }
        facts[0] = (int64_t)(intptr_t)(tensor.data + tensor.offset);
        facts[1] = (int64_t)tensor.bits * tensor.lanes / 8;
        facts[2] = (int64_t)tensor.device_type << 32 | (uint32_t)tensor.device;
        facts[3] = size;
        facts[4] = is_contiguous || size == 0;
        facts[5] = tensor.axes == 2 ? tensor.shape[0] : 0;
        facts[6] = tensor.axes == 2 ? tensor.shape[1] : 0;
    }
    return 0;
}
