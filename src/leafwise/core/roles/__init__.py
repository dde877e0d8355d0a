"""What leaves are for: the table of roles and axes for the layers of all frameworks, the parts of layers under one
name (`layer_parts`), the same array with its axes in another order (`named_axes`) and how one is made from others
(`recipes`). `sections` finds the weights and the optimizer state in a plain mapping."""
