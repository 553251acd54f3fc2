"""What an encoding is like, measured without training: python -m pe_lab.audit."""
