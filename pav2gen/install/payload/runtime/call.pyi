from typing import Any

class Call:
    def __init__(self, **fields: Any) -> None: ...
