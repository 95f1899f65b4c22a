"""motley from Python: `import motley.torch` registers the "motley" backend of torch.distributed."""
