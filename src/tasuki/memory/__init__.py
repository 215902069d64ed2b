"""How much memory a step would take on a GPU, found out without one.

The real step engine runs over fake CPU tensors, which have shapes and no numbers, while CUDA's ways
(autocast, attention, dropout, foreach) are put in place of a CPU's; every storage that comes and
goes is an event. Events of a few small batches are fitted over batch and size, so that the peak of
any batch follows. Exact for tensors, not for what CUDA's libraries take beside them. Runs in a
child process (child.py); figures are made of its probe file elsewhere, without torch.
"""
