; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.70, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, -16
  %.10 = add nsw i64 %.9, 1
  %.11 = call i64 @llvm.smax.i64(i64 %.10, i64 0)
  %.12 = call i64 @llvm.smin.i64(i64 %.11, i64 16)
  %.13 = trunc i64 %.12 to i32
  %.14 = insertelement <8 x i32> poison, i32 %.13, i64 0
  %.15 = shufflevector <8 x i32> %.14, <8 x i32> poison, <8 x i32> zeroinitializer
  %.16 = icmp sge <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.15
  %.17 = trunc i64 %.12 to i32
  %.18 = insertelement <8 x i32> poison, i32 %.17, i64 0
  %.19 = shufflevector <8 x i32> %.18, <8 x i32> poison, <8 x i32> zeroinitializer
  %.20 = icmp sge <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.19
  %.21 = mul nsw i64 %i.8, -16
  %.22 = add nsw i64 %n, %.21
  %.23 = add nsw i64 %.22, -1
  %.24 = call i64 @llvm.smax.i64(i64 %.23, i64 0)
  %.25 = call i64 @llvm.smin.i64(i64 %.24, i64 16)
  %.26 = trunc i64 %.25 to i32
  %.27 = insertelement <8 x i32> poison, i32 %.26, i64 0
  %.28 = shufflevector <8 x i32> %.27, <8 x i32> poison, <8 x i32> zeroinitializer
  %.29 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.28
  %.30 = trunc i64 %.25 to i32
  %.31 = insertelement <8 x i32> poison, i32 %.30, i64 0
  %.32 = shufflevector <8 x i32> %.31, <8 x i32> poison, <8 x i32> zeroinitializer
  %.33 = icmp slt <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.32
  %.34 = trunc i64 %.12 to i32
  %.35 = insertelement <8 x i32> poison, i32 %.34, i64 0
  %.36 = shufflevector <8 x i32> %.35, <8 x i32> poison, <8 x i32> zeroinitializer
  %.37 = icmp sge <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.36
  %.38 = trunc i64 %.25 to i32
  %.39 = insertelement <8 x i32> poison, i32 %.38, i64 0
  %.40 = shufflevector <8 x i32> %.39, <8 x i32> poison, <8 x i32> zeroinitializer
  %.41 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.40
  %.42 = and <8 x i1> %.37, %.41
  %.43 = trunc i64 %.12 to i32
  %.44 = insertelement <8 x i32> poison, i32 %.43, i64 0
  %.45 = shufflevector <8 x i32> %.44, <8 x i32> poison, <8 x i32> zeroinitializer
  %.46 = icmp sge <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.45
  %.47 = trunc i64 %.25 to i32
  %.48 = insertelement <8 x i32> poison, i32 %.47, i64 0
  %.49 = shufflevector <8 x i32> %.48, <8 x i32> poison, <8 x i32> zeroinitializer
  %.50 = icmp slt <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.49
  %.51 = and <8 x i1> %.46, %.50
  %.52 = xor <8 x i1> %.42, splat (i1 true)
  %.53 = xor <8 x i1> %.51, splat (i1 true)
  %.54 = mul nsw i64 %i.8, 16
  %.55 = getelementptr float, ptr %A, i64 %.54
  %.56 = getelementptr float, ptr %.55, i64 -1
  %.57 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.56, <8 x i1> %.42, <8 x float> zeroinitializer)
  %.58 = getelementptr float, ptr %.55, i64 7
  %.59 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.58, <8 x i1> %.51, <8 x float> zeroinitializer)
  %.60 = getelementptr float, ptr %.55, i64 1
  %.61 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.60, <8 x i1> %.42, <8 x float> zeroinitializer)
  %.62 = getelementptr float, ptr %.55, i64 9
  %.63 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.62, <8 x i1> %.51, <8 x float> zeroinitializer)
  %.64 = fadd contract <8 x float> %.57, %.61
  %.65 = fadd contract <8 x float> %.59, %.63
  %.66 = select <8 x i1> %.42, <8 x float> %.64, <8 x float> zeroinitializer
  %.67 = select <8 x i1> %.51, <8 x float> %.65, <8 x float> zeroinitializer
  %.68 = getelementptr float, ptr %C, i64 %.54
  store <8 x float> %.66, ptr %.68, align 4
  %.69 = getelementptr float, ptr %.68, i64 8
  store <8 x float> %.67, ptr %.69, align 4
  %i_next.70 = add nuw nsw i64 %i.8, 1
  %.71 = icmp slt i64 %i_next.70, %.4
  br i1 %.71, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.45, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, -16
  %.10 = add nsw i64 %.9, 1
  %.11 = call i64 @llvm.smax.i64(i64 %.10, i64 0)
  %.12 = call i64 @llvm.smin.i64(i64 %.11, i64 16)
  %.13 = trunc i64 %.12 to i32
  %.14 = insertelement <16 x i32> poison, i32 %.13, i64 0
  %.15 = shufflevector <16 x i32> %.14, <16 x i32> poison, <16 x i32> zeroinitializer
  %.16 = icmp sge <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.15
  %.17 = mul nsw i64 %i.8, -16
  %.18 = add nsw i64 %n, %.17
  %.19 = add nsw i64 %.18, -1
  %.20 = call i64 @llvm.smax.i64(i64 %.19, i64 0)
  %.21 = call i64 @llvm.smin.i64(i64 %.20, i64 16)
  %.22 = trunc i64 %.21 to i32
  %.23 = insertelement <16 x i32> poison, i32 %.22, i64 0
  %.24 = shufflevector <16 x i32> %.23, <16 x i32> poison, <16 x i32> zeroinitializer
  %.25 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.24
  %.26 = trunc i64 %.12 to i32
  %.27 = insertelement <16 x i32> poison, i32 %.26, i64 0
  %.28 = shufflevector <16 x i32> %.27, <16 x i32> poison, <16 x i32> zeroinitializer
  %.29 = icmp sge <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.28
  %.30 = trunc i64 %.21 to i32
  %.31 = insertelement <16 x i32> poison, i32 %.30, i64 0
  %.32 = shufflevector <16 x i32> %.31, <16 x i32> poison, <16 x i32> zeroinitializer
  %.33 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.32
  %.34 = and <16 x i1> %.29, %.33
  %.35 = xor <16 x i1> %.34, splat (i1 true)
  %.36 = mul nsw i64 %i.8, 16
  %.37 = getelementptr float, ptr %A, i64 %.36
  %.38 = getelementptr float, ptr %.37, i64 -1
  %.39 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.38, <16 x i1> %.34, <16 x float> zeroinitializer)
  %.40 = getelementptr float, ptr %.37, i64 1
  %.41 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.40, <16 x i1> %.34, <16 x float> zeroinitializer)
  %.42 = fadd contract <16 x float> %.39, %.41
  %.43 = select <16 x i1> %.34, <16 x float> %.42, <16 x float> zeroinitializer
  %.44 = getelementptr float, ptr %C, i64 %.36
  store <16 x float> %.43, ptr %.44, align 4
  %i_next.45 = add nuw nsw i64 %i.8, 1
  %.46 = icmp slt i64 %i_next.45, %.4
  br i1 %.46, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
