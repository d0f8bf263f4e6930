"""The commands, one module each. A command only calls the layers below, in their order.

May import: every other package except ``cli``.
"""
