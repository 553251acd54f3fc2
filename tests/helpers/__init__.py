"""What tests of several packages share, and programs that write or check tables; see tests/README.md."""
