"""A small ONVIF camera on loopback: SOAP over HTTP, WS-Discovery over UDP. It answers as real ones do, or as a test wants it to:
nonsense, too much, too slowly, with bombs, or with somebody else's address."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

USER, PASSWORD = "onvif", "c4nary-onvif"

_ENVELOPE = (
    '<?xml version="1.0" encoding="UTF-8"?><s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"'
    ' xmlns:tds="http://www.onvif.org/ver10/device/wsdl" xmlns:trt="http://www.onvif.org/ver10/media/wsdl"'
    ' xmlns:tt="http://www.onvif.org/ver10/schema" xmlns:ter="http://www.onvif.org/ver10/error"><s:Body>{}</s:Body></s:Envelope>'
)
_FAULT = (
    "<s:Fault><s:Code><s:Value>s:Sender</s:Value><s:Subcode><s:Value>ter:NotAuthorized</s:Value></s:Subcode></s:Code>"
    '<s:Reason><s:Text xml:lang="en">Sender not authorized</s:Text></s:Reason></s:Fault>'
)


def profile(token: str, name: str, width: int, height: int, codec: str = "H264", fps: int = 15) -> str:
    return (
        f'<trt:Profiles token="{token}" fixed="true"><tt:Name>{name}</tt:Name>'
        f'<tt:VideoEncoderConfiguration token="v{token}"><tt:Name>v</tt:Name><tt:UseCount>1</tt:UseCount>'
        f"<tt:Encoding>{codec}</tt:Encoding>"
        f"<tt:Resolution><tt:Width>{width}</tt:Width><tt:Height>{height}</tt:Height></tt:Resolution><tt:Quality>4</tt:Quality>"
        f"<tt:RateControl><tt:FrameRateLimit>{fps}</tt:FrameRateLimit><tt:EncodingInterval>1</tt:EncodingInterval>"
        "<tt:BitrateLimit>2048</tt:BitrateLimit></tt:RateControl>"
        "<tt:Multicast><tt:Address><tt:Type>IPv4</tt:Type><tt:IPv4Address>0.0.0.0</tt:IPv4Address></tt:Address><tt:Port>0</tt:Port>"
        "<tt:TTL>0</tt:TTL><tt:AutoStart>false</tt:AutoStart></tt:Multicast><tt:SessionTimeout>PT60S</tt:SessionTimeout>"
        "</tt:VideoEncoderConfiguration></trt:Profiles>"
    )


class OnvifCamera:
    """answer: (operation, usual body) -> what is sent instead of it; bytes are sent as they are. host: named in its addresses."""

    def __init__(
        self, answer: Callable[[str, str], str | bytes] = lambda operation, body: body, *, host: str = "127.0.0.1"
    ) -> None:
        self.answer, self.host = answer, host
        self.asked: list[str] = []
        self.received: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self.matches: Callable[[str], bytes] = self._match

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def udp_port(self) -> int:
        return int(self._udp.getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> OnvifCamera:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._udp.close()

    # --- SOAP ---------------------------------------------------------------------------------------------------------

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        camera = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                operation = camera.operation_of(text)
                camera.asked.append(operation)
                camera.received.append(text)
                body = camera.answer(operation, camera.body_of(operation, text))
                data = body if isinstance(body, bytes) else _ENVELOPE.format(body).encode()
                status = 400 if b"s:Fault" in data else 200
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/soap+xml; charset=utf-8")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # whoever asked has gone

            def log_message(self, *arguments: Any) -> None: ...

        return Handler

    @staticmethod
    def operation_of(text: str) -> str:
        found = re.search(r"<[\w-]*:?Body[^>]*>\s*<(?:[\w-]+:)?(\w+)", text)
        return found[1] if found else ""

    def body_of(self, operation: str, text: str) -> str:
        """The usual answer."""
        if operation != "GetSystemDateAndTime" and "UsernameToken" not in text:
            return _FAULT
        if operation not in ("GetSystemDateAndTime",) and f"<wsse:Username>{USER}<" not in text.replace("ns0:", "wsse:"):
            return _FAULT
        return self._bodies(text).get(operation, _FAULT)

    def _bodies(self, text: str) -> dict[str, str]:
        base = f"http://{self.host}:{self.port}/onvif"
        token = re.search(r"ProfileToken>([^<]*)<", text)
        stream = f"rtsp://{self.host}:554/{token[1] if token else ''}"
        return {
            "GetSystemDateAndTime": (
                "<tds:GetSystemDateAndTimeResponse><tds:SystemDateAndTime><tt:DateTimeType>NTP</tt:DateTimeType>"
                "<tt:DaylightSavings>false</tt:DaylightSavings><tt:UTCDateTime><tt:Time><tt:Hour>1</tt:Hour><tt:Minute>2</tt:Minute>"
                "<tt:Second>3</tt:Second></tt:Time><tt:Date><tt:Year>2020</tt:Year><tt:Month>1</tt:Month><tt:Day>1</tt:Day></tt:Date>"
                "</tt:UTCDateTime></tds:SystemDateAndTime></tds:GetSystemDateAndTimeResponse>"
            ),
            "GetCapabilities": (
                "<tds:GetCapabilitiesResponse><tds:Capabilities>"
                f"<tt:Device><tt:XAddr>{base}/device_service</tt:XAddr></tt:Device>"
                f"<tt:Media><tt:XAddr>{base}/media</tt:XAddr><tt:StreamingCapabilities/></tt:Media>"
                "</tds:Capabilities></tds:GetCapabilitiesResponse>"
            ),
            "GetDeviceInformation": (
                "<tds:GetDeviceInformationResponse><tds:Manufacturer>Acme &lt;b&gt;</tds:Manufacturer><tds:Model>Dome 3</tds:Model>"
                "<tds:FirmwareVersion>1.2</tds:FirmwareVersion><tds:SerialNumber>9</tds:SerialNumber><tds:HardwareId>h</tds:HardwareId>"
                "</tds:GetDeviceInformationResponse>"
            ),
            "GetProfiles": (
                f"<trt:GetProfilesResponse>{profile('main', 'Main', 2560, 1440, fps=25)}{profile('sub', 'Sub', 640, 360)}"
                f"{profile('tiny', 'Tiny', 176, 144)}</trt:GetProfilesResponse>"
            ),
            "GetStreamUri": (
                f"<trt:GetStreamUriResponse><trt:MediaUri><tt:Uri>{stream}</tt:Uri><tt:InvalidAfterConnect>false</tt:InvalidAfterConnect>"
                "<tt:InvalidAfterReboot>false</tt:InvalidAfterReboot><tt:Timeout>PT60S</tt:Timeout></trt:MediaUri>"
                "</trt:GetStreamUriResponse>"
            ),
        }

    # --- discovery ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                data, sender = self._udp.recvfrom(65536)
            except OSError:
                return
            found = re.search(r"MessageID>([^<]+)<", data.decode(errors="replace"))
            if found:
                self._udp.sendto(self.matches(found[1]), sender)

    def _match(self, relates_to: str) -> bytes:
        return match_of(relates_to, f"http://{self.host}:{self.port}/onvif/device_service")


def match_of(relates_to: str, addresses: str, name: str = "Dome%203") -> bytes:
    """What a camera answers a discovery."""
    scope = "onvif://www.onvif.org"
    return (
        '<?xml version="1.0" encoding="UTF-8"?><s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"'
        ' xmlns:a="http://schemas.xmlsoap.org/ws/2004/08/addressing" xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery"'
        ' xmlns:dn="http://www.onvif.org/ver10/network/wsdl"><s:Header>'
        "<a:Action>http://schemas.xmlsoap.org/ws/2005/04/discovery/ProbeMatches</a:Action>"
        f"<a:MessageID>urn:uuid:{uuid4()}</a:MessageID><a:RelatesTo>{relates_to}</a:RelatesTo>"
        '<d:AppSequence InstanceId="1" MessageNumber="1"/></s:Header><s:Body><d:ProbeMatches><d:ProbeMatch>'
        f"<a:EndpointReference><a:Address>urn:uuid:{uuid4()}</a:Address></a:EndpointReference>"
        "<d:Types>dn:NetworkVideoTransmitter</d:Types>"
        f"<d:Scopes>{scope}/name/{name} {scope}/hardware/D3 {scope}/location/yard</d:Scopes>"
        f"<d:XAddrs>{addresses}</d:XAddrs><d:MetadataVersion>1</d:MetadataVersion>"
        "</d:ProbeMatch></d:ProbeMatches></s:Body></s:Envelope>"
    ).encode()
