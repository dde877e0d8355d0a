"""Long work: shared by threads (`threads`), done by other processes (`executor_tasks`) or for many checkpoints
(`fleet`), in step with other ranks (`ranks`), with a progress bar."""
