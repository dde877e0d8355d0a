"""The values of JAX arrays: read to the host shard by shard, measured, compared, averaged, clipped, and made anew."""
