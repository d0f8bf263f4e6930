from typing import Any

from .call import Call

def check(call: Call, kv_cache_dtype: str) -> Any: ...
