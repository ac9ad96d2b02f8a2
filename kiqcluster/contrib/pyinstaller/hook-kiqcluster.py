"""Hook: the Lua scripts, templates, catalogues and static files of kiqcluster, and modules that are found by name."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

datas = collect_data_files("kiqcluster")
hiddenimports = collect_submodules("kiqcluster.web.views", on_error="ignore")
