"""Properties and costs of encodings, measured without training: python -m pe_lab.audit."""
