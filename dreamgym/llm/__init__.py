"""Language models: `tiny` from scratch, `backbones` pretrained, their tokenizers and vocabulary, and what engines share."""
