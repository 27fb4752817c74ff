"""One file per implementation: its adapters as ADAPTERS; the package is imported only when called."""

#: In the order of the table. A file that is added is added here.
MODULES = tuple(
    f"{__name__}.{name}"
    for name in (
        "ours",
        "fla",
        "liger",
        "fast_attnres",
        "flash_attn_res",
        "attn_res",
        "mlx_lm",
        "codon_motif",
        "transformers",
        "x_transformers",
    )
)
