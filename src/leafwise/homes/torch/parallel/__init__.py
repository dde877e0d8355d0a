"""Parameters that are split over processes by DTensor, FSDP or DeepSpeed: how they are split, the parts in this
process, and the messages by which the ranks learn what the others did."""
