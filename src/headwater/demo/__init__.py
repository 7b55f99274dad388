"""A minute of a small shop: a writer changes its tables, stream tables follow, each is verified in turn."""

from headwater.demo.show import run

__all__ = ["run"]
