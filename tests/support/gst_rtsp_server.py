"""An RTSP server that is not ours, for tests: GStreamer's, run by the system's python3 (which has `gi`, where ours has not).

Prints two ports once it serves. The first is open to all and has /h264, /h265 (if there is an encoder), /mjpeg and /bare (H.264
whose description tells no parameter sets). The second asks for a Basic password, joe:secret, and has /h264. Ends with its input.
"""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

SOURCE = "videotestsrc is-live=true pattern=ball ! video/x-raw,format=I420,width=320,height=240,framerate=15/1 ! "
X264 = "x264enc tune=zerolatency speed-preset=ultrafast key-int-max=15 bitrate=400 ! "
H264 = SOURCE + X264 + "rtph264pay name=pay0 pt=96 config-interval=-1"
PIPELINES = {
    "/h264": H264,
    "/bare": SOURCE + X264 + "video/x-h264,stream-format=byte-stream ! rtph264pay name=pay0 pt=96 config-interval=1",
    "/mjpeg": SOURCE + "jpegenc ! rtpjpegpay name=pay0 pt=26",
}
H265 = SOURCE + "x265enc tune=zerolatency speed-preset=ultrafast key-int-max=15 ! rtph265pay name=pay0 pt=96 config-interval=-1"


def serve(pipelines: dict[str, str], *, locked: bool) -> GstRtspServer.RTSPServer:
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service("0")
    for path, pipeline in pipelines.items():
        factory = GstRtspServer.RTSPMediaFactory()
        factory.set_launch(f"( {pipeline} )")
        factory.set_shared(True)
        if locked:
            role = Gst.Structure.new_empty("viewer")
            role.set_value("media.factory.access", True)
            role.set_value("media.factory.construct", True)
            factory.add_role_from_structure(role)
        server.get_mount_points().add_factory(path, factory)
    if locked:
        auth = GstRtspServer.RTSPAuth()
        token = GstRtspServer.RTSPToken()
        token.set_string(GstRtspServer.RTSP_TOKEN_MEDIA_FACTORY_ROLE, "viewer")
        auth.add_basic(GstRtspServer.RTSPAuth.make_basic("joe", "secret"), token)
        server.set_auth(auth)
    server.attach(None)
    return server


def main() -> None:
    Gst.init(None)
    pipelines = PIPELINES | ({"/h265": H265} if Gst.ElementFactory.find("x265enc") else {})
    servers = [serve(pipelines, locked=False), serve({"/h264": H264}, locked=True)]
    print(*(server.get_bound_port() for server in servers), flush=True)
    loop = GLib.MainLoop()
    GLib.io_add_watch(sys.stdin.fileno(), GLib.PRIORITY_DEFAULT, GLib.IOCondition.HUP, lambda *_: loop.quit())
    loop.run()


main()
