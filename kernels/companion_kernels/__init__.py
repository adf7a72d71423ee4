"""Row-wide bookkeeping of speculative decoding: one file per kernel, its PyTorch reference inside."""
