"""DSpark: the DFlash backbone with the target's embedding and head, a Markov head and a confidence head."""

from __future__ import annotations

from torch import Tensor, nn

from companion.drafters.dspark.backbone import DFlashBackbone
from companion.drafters.dspark.config import DSparkConfig
from companion.drafters.dspark.heads import ConfidenceHead, markov_head


class DSparkModel(DFlashBackbone):
    """Backbone, heads, and the target's embedding and head, both frozen. Rank 0 without confidence is DFlash."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__(config)
        shape, rank = config.shape, config.markov_rank
        self.config = config
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        self.embed_tokens.requires_grad_(False)
        self.lm_head.requires_grad_(False)
        self.markov_head = markov_head(config.markov_head_type, shape.vocab_size, rank, shape.hidden) if rank else None
        seen = rank if config.confidence_reads_markov else 0
        self.confidence_head = ConfidenceHead(shape.hidden, seen) if config.confidence_head else None

    def forward(
        self,
        block: Tensor,  # [B, N] token ids: anchors and masks
        positions: Tensor,  # [B, N]
        features: Tensor,  # [B, T, m, d]
        mask: Tensor | None = None,  # [B, 1, N, T + N]
    ) -> Tensor:  # [B, N, d]
        return self.backbone(self.embed_tokens(block), positions, features, mask)
